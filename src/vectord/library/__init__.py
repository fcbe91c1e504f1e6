"""The engine as a library: `vectord.Embedder`, and its classes for LangChain, LlamaIndex, Chroma and Haystack.

May import engine, checkpoints, config, schema and errors. Read embedder.py first; each framework has one file.
"""
