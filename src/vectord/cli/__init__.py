"""The command `vectord`. May import every other package; nothing imports it.

Read main.py first: it runs one of the modules in commands/ and turns a StartError into one line and exit code 2.
printing.py has what commands share for tables and plain text.
"""
