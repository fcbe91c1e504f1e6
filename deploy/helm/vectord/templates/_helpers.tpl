{{- define "vectord.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters, so that the names made of it have at most 63. */}}
{{- define "vectord.fullname" -}}
{{- $name := include "vectord.name" . }}
{{- $release := .Release.Name }}
{{- $full := ternary $release (printf "%s-%s" $release $name) (contains $name $release) }}
{{- default $full .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "vectord.selector" -}}
app.kubernetes.io/name: {{ include "vectord.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vectord.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "vectord.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Whether a setting has a value, plain or secret. */}}
{{- define "vectord.isSet" -}}
{{- $settings := merge dict (default dict .root.Values.settings) (default dict .root.Values.secretSettings) }}
{{- if get $settings .name }}true{{ end }}
{{- end }}

{{/* A value as vectord reads it. Helm reads whole numbers as float64, and would write 33554432 as 3.3554432e+07. */}}
{{- define "vectord.text" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}
{{- else }}{{ toString . }}{{ end }}
{{- end }}

{{- define "vectord.port" -}}
{{ default 8000 .Values.settings.port | int }}
{{- end }}

{{/* Whether the port serves TLS. */}}
{{- define "vectord.tls" -}}
{{- $files := or .Values.tlsSecret (and .Values.settings.tls_cert_file .Values.settings.tls_key_file) }}
{{- if and $files (ne (toString (get .Values.settings "tls_enabled")) "false") }}true{{ end }}
{{- end }}

{{- define "vectord.scheme" -}}
{{ if include "vectord.tls" . }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{/* The port of /metrics: its own, or the server's. */}}
{{- define "vectord.metricsPort" -}}
{{ if .Values.settings.prometheus_port }}metrics{{ else }}http{{ end }}
{{- end }}

{{- define "vectord.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "vectord.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}
