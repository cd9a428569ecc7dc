"""Units of a network, for methods that mask them."""
