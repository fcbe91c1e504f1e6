"""A running server of any make, asked from outside: `server.py` sends, `forms.py` knows how each make is asked.

For the commands check, bench and doctor. Knows nothing of what serves; httpx is imported in server.py alone.
"""
