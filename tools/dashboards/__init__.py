"""The Grafana dashboards: what each panel shows, and its PromQL."""
