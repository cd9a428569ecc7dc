"""Reading data sets as their publishers ship them. Files are untrusted: nothing in them is ever executed."""
