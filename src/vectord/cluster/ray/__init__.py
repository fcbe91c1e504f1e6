"""Ray Serve for requests, Ray Data for files. The only folder that imports ray, an extra.

serve.py    cluster ─▶ replica: the app of compose.build, in as many processes as scaling.py requests
bulk.py     cluster ─▶ parts ─▶ Ray Data ─▶ part_embedder: each part of the input is a job of vectord.bulk
"""
