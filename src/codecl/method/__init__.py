"""The base class of all methods, and its parts."""
