"""What no run needs: an extra imports the core, and the core imports none."""
