"""Models in one GGUF file, as llama.cpp and Ollama keep them. Nothing is converted on disk.

`model.read_model` turns the metadata into config.json's keys and names the tensors as transformers does;
`weights.read_weights` makes arrays of them; `tokenizer.tokenizer_json` makes tokenizer.json of the vocabulary.
`ollama.find_blob` finds a file that Ollama has downloaded. Read model.py first; files/gguf_file.py reads the container.
"""
