{{- define "vectord.name" -}}
{{- if eq .Release.Name "vectord" }}vectord{{ else }}{{ printf "%s-vectord" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "vectord.selector" -}}
app.kubernetes.io/name: vectord
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vectord.labels" -}}
{{ include "vectord.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Whether a setting has a value, plain or secret. */}}
{{- define "vectord.said" -}}
{{- $settings := merge dict (default dict .root.Values.settings) (default dict .root.Values.secretSettings) }}
{{- if get $settings .name }}true{{ end }}
{{- end }}
