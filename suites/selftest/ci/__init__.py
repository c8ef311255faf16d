"""The workflows, the action, and the scripts that they run, as far as a machine without GitHub."""
