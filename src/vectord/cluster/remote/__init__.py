"""The engine in another process of this machine: its side of a local socket (server.py) and the others' (client.py)."""
