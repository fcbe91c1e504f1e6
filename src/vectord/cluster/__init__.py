"""Several processes: front-ends on one machine, and Ray on many. May import everything except cli/ and asgi.py.

    processes/  the supervisor, the engine's process and the front-ends of `vectord serve --front-ends N`
    remote/     the protocol between front-ends and the engine's process
    ray.py      a deployment of Ray Serve, and a class for Ray Data

Read processes/supervisor.py first.
"""
