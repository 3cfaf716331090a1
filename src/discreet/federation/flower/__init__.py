"""Flower between the server and the sites: everything that knows of it, and nothing else.

`link` carries messages for the server, `server` is Flower's ServerApp, `client` its ClientApp (a relay to the site's own
process), `node` its SuperNode with shorter waits, `control` what its command line is asked. ``app`` is the folder that
``flwr run`` takes.
"""
