"""The app of the server."""

from discreet.federation.flower.server import server_app

app = server_app()
