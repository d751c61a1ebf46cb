"""Which test finds which fault: faults are put into a copy of the code, one at a time, and the suite looks for them."""
