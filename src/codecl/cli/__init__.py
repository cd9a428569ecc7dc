"""The commands of ``codecl``, a module each: ``add`` says what its options are, and a function does what they ask."""
