"""What remains of an engine that was killed or died: a folder an incident, docs/incidents.md."""
