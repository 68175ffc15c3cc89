{{- define "korvet.selector" -}}
app.kubernetes.io/name: korvet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "korvet.labels" -}}
{{ include "korvet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
