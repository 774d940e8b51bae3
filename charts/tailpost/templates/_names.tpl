{{- define "tailpost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tailpost.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "tailpost.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "tailpost.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tailpost.selector" -}}
app.kubernetes.io/name: {{ include "tailpost.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tailpost.labels" -}}
{{ include "tailpost.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tailpost.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tailpost.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tailpost.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Kubernetes name of a consumer, which may have capitals and underscores, and be long. */}}
{{- define "tailpost.inboxName" -}}
{{- $name := .consumer | lower | replace "_" "-" | trunc 14 | trimSuffix "-" }}
{{- if ne $name .consumer }}{{ $name = printf "%s-%s" $name (sha256sum .consumer | trunc 5) }}{{ end }}
{{- printf "%s-inbox-%s" (include "tailpost.fullname" .root | trunc 36 | trimSuffix "-") $name }}
{{- end }}

{{/* What a consumer says, over what all of them say. */}}
{{- define "tailpost.inbox" -}}
{{- $of := mergeOverwrite (deepCopy .root.Values.inboxDefaults) (deepCopy (index .root.Values.inboxes .consumer)) }}
{{- toYaml $of }}
{{- end }}
