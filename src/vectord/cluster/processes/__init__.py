"""`vectord serve --front-ends N`: the processes of one server, and who watches over them (supervisor.py)."""
