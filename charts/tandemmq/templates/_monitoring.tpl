{{/* Traces and metrics of brokers and NameServers. */}}

{{/* Settings by which a broker or NameServer tells its metrics. */}}
{{- define "tandemmq.metricsSettings" }}
{{- $monitoring := .Values.monitoring }}
{{- $types := list }}
{{- if $monitoring.metrics.enabled }}{{ $types = append $types "PROM" }}{{ end }}
{{- if $monitoring.otlp.endpoint }}{{ $types = append $types "OTLP_GRPC" }}{{ end }}
{{- with $types }}
metricsExporterType={{ join ";" . }}
{{- end }}
{{- if $monitoring.metrics.enabled }}
metricsPromExporterPort=5557
{{- end }}
{{- with $monitoring.otlp.endpoint }}
metricsGrpcExporterTarget={{ . }}
metricsGrpcExporterIntervalInMills={{ mul $monitoring.otlp.intervalSeconds 1000 }}
{{- end }}
{{- end }}

{{/* Settings by which a broker keeps traces. */}}
{{- define "tandemmq.tracingSettings" }}
{{- $tracing := .Values.tracing }}
{{- if $tracing.enabled }}
traceEnable=true
traceSampleRate={{ $tracing.sampleRate }}
traceSlowThreshold={{ int64 $tracing.slowThresholdMs }}
{{- with include "tandemmq.traceTarget" . }}
traceExporterTarget={{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where traces go, host:port; empty if they stay where they are. */}}
{{- define "tandemmq.traceTarget" -}}
{{- if .Values.tracing.viewer.enabled -}}
{{ include "tandemmq.fullname" . }}-trace-viewer.{{ include "tandemmq.namespace" . }}.svc.{{ .Values.clusterDomain }}:4317
{{- else -}}
{{ .Values.tracing.endpoint }}
{{- end }}
{{- end }}
