"""Serves the products' routes over HTTP and gRPC, and the server's own pages.

admission/ decides whether a request may run; pipeline.py has the steps that HTTP and gRPC share; http/ and grpc/ are
the transports; pages/ has the console and the API's description. May import `products`, `observability`, `config`,
`schema`, `errors` and the engine's client interface. Start with http/handler.py.
"""
