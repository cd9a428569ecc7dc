"""Methods inside the trainers of others: one file for each, imported where it is used, since none is a dependency."""
