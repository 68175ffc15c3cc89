"""All metric families that korvet exports, one module a subject, each family a constant."""
