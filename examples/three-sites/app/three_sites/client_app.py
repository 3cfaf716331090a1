"""The app of a site's node."""

from discreet.federation.flower.client import client_app

app = client_app()
