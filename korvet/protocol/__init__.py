"""The Kafka wire protocol: headers, message schemas and the registry of APIs. No sockets."""
