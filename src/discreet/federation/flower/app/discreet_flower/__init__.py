"""What Flower loads, at the server and at every site; all of it is in the installed discreet."""
