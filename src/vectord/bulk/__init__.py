"""`vectord bulk`: a file of texts -> a file of vectors, in order, resumable after any interruption.

Uses the engine through engine.client, and imports nothing of the server. pyarrow, an extra, is imported only in
arrow_input.py and arrow_output.py; httpx only in remote.py. Read pipeline.py first.

    inputs, arrow_input ── Rows ──▶ writer.Divider ─▶ pipeline ── texts ──▶ embedder (this process), remote (a server)
                                                         │ ▲                        │
                                                         │ └────── TextVectors ─────┘
                                    writer.PartWriter ◀──┘
             folder (OUT.parts/) ◀── outputs, arrow_output: part files, at the end joined into OUT

The pipeline runs on an event loop. Reading, encoding and writing run in threads, one call at a time each.
"""
