"""What Flower loads, at the server and at every site; all that it does is in the installed discreet."""
