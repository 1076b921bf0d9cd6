"""One query a file, with named parameters; loaded by tireless/store/queries.py."""
