"""Many machines: Ray Serve for requests, Ray Data for files. The one folder that imports ray, an extra.

    serve.py    python -m vectord.cluster.serve, serve run vectord.cluster.serve:app
      environment ▶ application ─▶ replica: the app of compose.build, in as many processes as scaling.py asks for
    bulk.py     python -m vectord.cluster.bulk IN OUT
      storage ▶ planning ─▶ Ray Data ─▶ part_embedder: each part of the input is a job of vectord.bulk

Nothing is imported from here but by these two commands.
"""
