"""The Prometheus rules and Grafana dashboards, as files. In a checkout, they are links to `deploy/`."""
