"""The engine as a library: `vectord.Embedder`, and its classes for LangChain, LlamaIndex, Chroma and Haystack.

Read embedder.py first; each framework has one file.
"""
