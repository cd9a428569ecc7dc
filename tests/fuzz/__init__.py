"""Damaged and hostile files for everything that reads one: ``make fuzz``. A seed is printed, and repeats all cases."""
