{{- define "sandkasten.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sandkasten.selector" -}}
app.kubernetes.io/name: sandkasten
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandkasten.labels" -}}
{{ include "sandkasten.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The namespaces of sandboxes, as YAML: that of all tenants, and then those of some of them. */}}
{{- define "sandkasten.namespaces" -}}
{{- $first := dict "namespace" .Values.sandboxes.namespace "quota" .Values.sandboxes.quota -}}
{{- toYaml (dict "all" (prepend .Values.sandboxes.tenantNamespaces $first)) -}}
{{- end }}

{{/* The settings file: what follows from the chart's own objects, and over it .Values.settings. */}}
{{- define "sandkasten.settings" -}}
{{- $name := .Release.Name -}}
{{- $service := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts := concat (list $name $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service)) .Values.hosts -}}
{{- $cluster := dict "namespace" .Values.sandboxes.namespace "installation" (printf "%s.%s" .Release.Namespace $name) "runner_image" (include "sandkasten.image" .) -}}
{{- $tenants := dict -}}
{{- range $one := .Values.sandboxes.tenantNamespaces -}}
{{- range $one.tenants -}}
{{- $_ := set $tenants . $one.namespace -}}
{{- end -}}
{{- end -}}
{{- if $tenants -}}
{{- $_ := set $cluster "tenant_namespaces" $tenants -}}
{{- end -}}
{{- $own := dict "backend" "kubernetes" "http" (dict "allowed_hosts" $hosts) "backends" (dict "kubernetes" $cluster) -}}
{{- toYaml (mustMergeOverwrite $own (deepCopy .Values.settings)) -}}
{{- end }}

{{/* Where the daemon reaches a sandbox. */}}
{{- define "sandkasten.gatePort" -}}
{{ dig "backends" "kubernetes" "port" 8484 .Values.settings }}
{{- end }}
