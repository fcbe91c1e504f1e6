"""int8 calibration: sample texts, the fit of each place, and stored recipes. Imports no backend. Read fit.py first."""
