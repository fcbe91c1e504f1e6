"""text-embeddings-inference's gRPC service, tei.v1, over the same engine as the HTTP port. Needs the extra `grpc`.

tei.proto declares methods and messages, tei_pb2.py is generated of it. requests.py reads messages, answers.py writes
them, statuses.py says what went wrong; services.py answers calls, streams.py and rank_stream.py those of many messages;
server.py has the port. Only this package imports grpc and protobuf, and only compose imports it, where such a port is
configured.
"""
