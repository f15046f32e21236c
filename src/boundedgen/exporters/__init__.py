"""Stats and health in the forms that other tools read; each module needs an extra of its own."""
