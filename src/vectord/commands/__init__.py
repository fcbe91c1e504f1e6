"""One module a command of `vectord`: the folder is the registry. What each must have: base.py.

What a command needs is imported when it runs: the server must answer one second after exec, help at once.
"""
