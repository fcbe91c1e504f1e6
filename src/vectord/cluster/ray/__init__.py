"""Ray Serve for requests. The only folder that imports ray, an extra.

serve.py    cluster ─▶ replica: the app of compose.build, in as many processes as scaling.py requests
"""
