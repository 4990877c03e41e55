"""Teams, projects and who may do what in them."""
