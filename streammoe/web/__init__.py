"""What serves HTTP: listeners that bound what untrusted clients cost, and who is answered."""
