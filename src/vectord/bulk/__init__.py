"""`vectord bulk`: a file of texts -> vectors in a file or a database, resumable after any interruption.

Uses the engine through engine.client, and imports nothing of the server. The extras are imported only in
arrow_input.py, arrow_output.py and postgres.py; httpx only in remote.py and qdrant.py. Read pipeline.py first.

    inputs, arrow_input ── Rows ──▶ writer.divide ──▶ pipeline ── texts ──▶ embedder (this process), remote (a server)
                                                         │ ▲                        │
                                                         │ └────── TextVectors ─────┘
                                    writer.PartWriter ◀──┘
        outputs.BulkOutput: folder (OUT.parts/) ◀── outputs, arrow_output: part files, at the end joined into OUT
                            postgres, qdrant ◀── database: one entry for each row

The pipeline runs on an event loop. Reading, encoding and writing run in threads, one call at a time each.
"""
