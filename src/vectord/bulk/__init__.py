"""`vectord bulk`: a file of texts to a file of vectors, in order, continued where it stopped.

Called by commands/bulk.py.

    inputs ──▶ text_rows, tables ── Rows ──▶ pipeline ── texts ──▶ embedder: in_process, remote
                                                │  ▲                         │ Answers
                                                │  └─────────────────────────┘
                                                └── Parts ──▶ outputs, tables ── bytes ──▶ journal ──▶ OUT

The pipeline lives on an event loop. Reading, and making and writing a part's bytes, run in threads, one at a time each.
pyarrow, an extra, is imported in arrow/; httpx by way of the client in remote.py.
"""
