"""Benchmarks of vectord and of its peers. `python -m bench --help` lists them.

Each measured program is a process of its own (a server, or a child process that runs one round at a time; child.py).
Rounds of different programs alternate, so that other load on the machine slows all of them equally.
"""
