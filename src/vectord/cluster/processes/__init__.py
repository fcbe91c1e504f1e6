"""`vectord serve --front-ends N`: a supervisor, the engine's process, and N front-ends. Read supervisor.py first."""
