"""One module is one op set, the operations that networks are written in. base.py is the interface; read it first."""
