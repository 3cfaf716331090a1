"""A federation between real sites: who they are, what they allow, what passes between them, and who runs it."""
