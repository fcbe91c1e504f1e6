"""Pages of the server itself: the console, Swagger UI, and the API's description in OpenAPI.

May import what `server` may. Start with openapi.py; console/ has the console's HTML, CSS and JavaScript.
"""
