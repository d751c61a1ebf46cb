"""Commands about several daemons; entry points register them."""
