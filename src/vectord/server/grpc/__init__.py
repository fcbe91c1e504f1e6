"""text-embeddings-inference's gRPC service, tei.v1, over the same engine as HTTP. Needs the extra `grpc`.

tei.proto declares methods and messages, and tei_pb2.py is generated from it. messages.py makes requests of messages and
messages of results, services.py answers calls, server.py opens the port. Only this package imports grpc and protobuf,
and only compose.py imports it, if the port is configured. May import what `server` may, except the HTTP handler. Start
with services.py.
"""
