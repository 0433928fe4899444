"""Training: loop, optimizer, model and files, which all of it shares; a draft for the user's own target."""
